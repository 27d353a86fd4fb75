"""What must survive the controller: one database, SQLite or PostgreSQL.

Every module but `database` is functions over a connection inside a transaction, one concept a file; times
come in as values. Rows become frozen values in `rows`.
"""
