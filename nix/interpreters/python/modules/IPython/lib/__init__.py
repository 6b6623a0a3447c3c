"""Has the module display, in which IPython keeps sound and films."""
