"""The store of fleets: artifacts in an S3-compatible object store. What lies where: `coatcheck.artifacts.s3.keys`."""
