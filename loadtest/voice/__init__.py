"""Speech that is heard: how well and how fast, beside faster-whisper with the same weights in the same run."""
