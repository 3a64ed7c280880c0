"""In: cut graphs, the finished schedule, a runtime. Out: the boxed callables that AOTAutograd runs."""
