"""Readers of config.json: a decoder's specification from the fields of its family."""
