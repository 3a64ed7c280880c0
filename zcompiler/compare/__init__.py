"""Compares schedules without running or compiling anything: schedules by name come in, what they cost and how they
differ goes out."""
