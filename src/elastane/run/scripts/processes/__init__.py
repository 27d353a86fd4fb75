"""The processes of an unmodified script: forked warm, each with a rank and a store of its world."""
