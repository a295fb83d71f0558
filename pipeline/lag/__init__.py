"""How far consumer groups are behind, over time: samples of a cluster as a stream, and its rows as files of a lake."""
