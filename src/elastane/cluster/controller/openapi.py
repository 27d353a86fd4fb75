"""``python -m elastane.cluster.controller.openapi`` prints the description of the API."""

import json
import sys

from elastane.cluster.controller.rest.app import describe_api

if __name__ == "__main__":
    json.dump(describe_api(), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")
