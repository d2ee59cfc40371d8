"""Compare two revisions of kvfs on one machine: did it get slower, and can the figures tell?"""
