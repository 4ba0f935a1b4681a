"""Administration of catalogs: checking one against storage, comparing two, copying tables between them."""
