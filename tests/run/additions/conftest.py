"""Files of this folder are run by tests/run/test_habits.py beside a changed tree, never in this one."""

collect_ignore_glob = ["*.py"]
