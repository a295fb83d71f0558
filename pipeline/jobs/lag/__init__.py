"""How far consumer groups are behind, over time: samples of a cluster, and their rows as files of a lake."""
