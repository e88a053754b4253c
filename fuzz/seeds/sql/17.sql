COPY t TO 'x.csv'
