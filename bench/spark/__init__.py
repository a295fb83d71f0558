"""The cases of Spark: the speed of its sources, its sink and the jobs, on stores and topics made for them."""
