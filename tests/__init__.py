"""Tests of spac; the folders mirror the rooms of csrc and python/spac."""
