"""Token streams: followed, guarded, and cancelled once their readers are gone."""
