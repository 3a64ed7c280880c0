"""In: a model, real or of shapes only, and a batch. Out: the plan and the schedules that zinf would use, as plain data.

Nothing is compiled or run, and no bytes of the model are touched.
"""
