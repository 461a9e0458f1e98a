"""A Dockerfile and its context -> measured builds, as it is and with each fix."""
