"""The store: one database, SQLite or PostgreSQL, with all data that must survive the controller.

Most modules are functions over a connection inside a transaction, one concept for each file. Times are
arguments. `rows` turns rows into frozen values.
"""
