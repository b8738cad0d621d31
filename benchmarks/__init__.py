"""Measures Tensorgate beside other model servers; see README.md. No part of the installed package."""
