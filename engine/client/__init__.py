"""The server's client of an engine; continues requests on another engine if one is lost."""
