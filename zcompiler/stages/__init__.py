"""In: one graph of Dynamo's, and what is known around it. Out: its plan and its finished schedule.

The stages up to there, called in order; nothing is compiled, kept or run. `backend.py` goes on from the result, and
`describe/` shows it.
"""
