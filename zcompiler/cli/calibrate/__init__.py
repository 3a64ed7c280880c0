"""`zinf calibrate`: measures this machine and writes what it found as a machine file."""
