SELECT generate_series(1, 10), make_array(1, 2), struct(1 AS a), map(['k'], [1]), to_timestamp(big), decode('ff', 'hex')
