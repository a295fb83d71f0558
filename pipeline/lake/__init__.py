"""Archives as Parquet files with manifests."""
