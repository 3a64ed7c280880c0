"""`zinf dump`: the plan and the schedules for a model that is named on the command line."""
