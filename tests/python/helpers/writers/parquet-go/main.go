// Writes Parquet with parquet-go: each line of the input is a file in JSON, which `differential_sources.Program` makes.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/parquet-go/parquet-go"
)

type order struct {
	Path    string
	Columns []struct{ Name, Type string }
	Rows    [][]json.RawMessage
	Group   int `json:"row_group"`
	Page    int
}

func node(kind string) parquet.Node {
	switch kind {
	case "int32":
		return parquet.Int(32)
	case "int64":
		return parquet.Int(64)
	case "double":
		return parquet.Leaf(parquet.DoubleType)
	case "bool":
		return parquet.Leaf(parquet.BooleanType)
	}
	return parquet.String()
}

func value(kind string, raw json.RawMessage) (parquet.Value, error) {
	var err error
	switch kind {
	case "int32":
		var made int32
		err = json.Unmarshal(raw, &made)
		return parquet.Int32Value(made), err
	case "int64":
		var made int64
		err = json.Unmarshal(raw, &made)
		return parquet.Int64Value(made), err
	case "double":
		var made float64
		err = json.Unmarshal(raw, &made)
		return parquet.DoubleValue(made), err
	case "bool":
		var made bool
		err = json.Unmarshal(raw, &made)
		return parquet.BooleanValue(made), err
	}
	var made string
	err = json.Unmarshal(raw, &made)
	return parquet.ByteArrayValue([]byte(made)), err
}

func write(wanted order) error {
	file, err := os.Create(wanted.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	group, kinds := parquet.Group{}, map[string]string{}
	places := map[string]int{}
	for place, column := range wanted.Columns {
		group[column.Name] = parquet.Optional(node(column.Type))
		kinds[column.Name], places[column.Name] = column.Type, place
	}
	schema := parquet.NewSchema("row", group)
	// Data pages of version 2: those of version 1 that it writes row by row are readable by nobody.
	writer := parquet.NewWriter(file, schema, parquet.PageBufferSize(wanted.Page))
	for number, values := range wanted.Rows {
		row := parquet.Row{}
		// The columns of a group are in the order of their names.
		for index, path := range schema.Columns() {
			raw := values[places[path[0]]]
			if bytes.Equal(raw, []byte("null")) {
				row = append(row, parquet.NullValue().Level(0, 0, index))
				continue
			}
			made, err := value(kinds[path[0]], raw)
			if err != nil {
				return err
			}
			row = append(row, made.Level(0, 1, index))
		}
		if _, err := writer.WriteRows([]parquet.Row{row}); err != nil {
			return err
		}
		if (number+1)%wanted.Group == 0 {
			if err := writer.Flush(); err != nil {
				return err
			}
		}
	}
	return writer.Close()
}

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var wanted order
		if err = json.Unmarshal(line, &wanted); err == nil {
			err = write(wanted)
		}
		if err != nil {
			fmt.Println(err)
		} else {
			fmt.Println("written")
		}
	}
}
