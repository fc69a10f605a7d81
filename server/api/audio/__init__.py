"""Transcription, translation and speech."""
