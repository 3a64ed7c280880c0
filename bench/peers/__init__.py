"""zinf beside its peers, in the same run: same model, data, precision and disk, each system in a process and a virtual
environment of its own (docs/peers.md).

files.py writes model and data; child.py is what every process does, and the modules of one system each (eager.py,
inductor.py, fsdp2.py, deepspeed.py, zinf.py) what it does by itself; environment.py says where their environments are;
systems.py lists them; rounds.py lets them take turns; table.py tells what came of it; `python -m bench.peers` does all.
"""
