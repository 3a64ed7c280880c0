"""`zinf doctor`: probes look at the machine (found.py has their answers), judge says what each means, report prints."""
