/* a comment -- in it */ SELECT "id" AS "a ""b"" " FROM public.t -- end
