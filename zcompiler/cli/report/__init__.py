"""`zinf report`: one page of HTML from a recorded trace, readable without a network."""
