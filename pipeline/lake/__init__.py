"""Archives as a Delta table of Parquet files."""
