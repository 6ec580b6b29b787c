"""The doctor: what a server of S3 really does, found out by doing it.

It begins in `coatcheck.artifacts.s3.doctor.examine`. All that it makes lies under ``doctor.d/<random>/`` below the
store's prefix, and is removed in the end.
"""
