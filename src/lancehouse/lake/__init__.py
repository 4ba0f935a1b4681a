"""Lance tables themselves: the only room that imports `lance`."""
