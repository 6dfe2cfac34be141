"""What the files say: feature specifications, parquet input, generated data. Imports no other room."""
