"""In: what is to happen on each lane, as text, as an FX graph or built in Python. Out: the same in either other form,
the bytes it holds on each tier at each op, and what is wrong with it."""
