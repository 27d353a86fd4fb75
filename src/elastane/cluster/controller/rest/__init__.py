"""The REST API: requests in, transactions on the store, answers out. The decisions are made elsewhere."""
