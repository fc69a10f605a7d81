"""Speech synthesis: voices on disk, the speech process, and its client in the server.

The synthesis libraries (onnxruntime and Piper, or torch and transformers) are imported in that process only.
"""
