"""From samples to segments of text: long-form transcription over an engine that transcribes one window at a time."""
