"""From samples to segments of text: long-form transcription over an engine that hears one window at a time."""
