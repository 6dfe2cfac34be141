"""Benchmarks of the parts, beside what users would take instead; each is a command and can write JSON."""
