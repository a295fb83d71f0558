"""Failover drills: load with a recorded history, one fault at a time from a seed, and a verdict with its evidence.

:mod:`penstock.judge` needs neither sockets nor processes: a history that was kept can be judged again.
"""
