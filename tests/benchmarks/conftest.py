"""Here so that tests in the folders below find the modules that stand beside it."""
