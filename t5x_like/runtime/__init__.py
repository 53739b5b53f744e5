"""The process and the machine of a run: watchdog, compile cache, environment."""
