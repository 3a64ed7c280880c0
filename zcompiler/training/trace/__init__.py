"""What a run did, beside what was planned, as one file: measured and planned activity in the same plain form."""
