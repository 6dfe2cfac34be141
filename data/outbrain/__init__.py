"""The Outbrain click data: its columns and the way from its raw tables to them."""
