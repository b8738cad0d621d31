"""What runs inside the peers: their set-up and the model code that is the same in all of them."""
