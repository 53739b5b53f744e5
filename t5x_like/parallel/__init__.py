"""Split arrays over a mesh of devices, and join the processes of a job."""
