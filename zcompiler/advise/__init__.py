"""In: what zinf would do for a model, or a schedule. Out: in words and figures, where the memory and the time of a step
go and why, and which changes would help, each of them planned again."""
